//! Why the document of a component on a machine cannot be rebuilt.

use alloc::string::String;

use keelway_api::{
    name::{ComponentName, HypervisorName},
    role::Role,
};

/// Why the document of a component cannot be rebuilt from its machine.
#[expect(missing_docs, reason = "the messages state the reasons")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnclearReason {
    #[error("its name is not that of a component that this release knows")]
    UnknownName,
    #[error("its last container is not {0}")]
    OtherContainer(Role),
    #[error("this program does not know the release of {image}: use the newest keelway")]
    UnknownRelease { image: String },
    #[error("its config has no version in cluster-controller.json")]
    NoVersion,
    #[error("its config has no port {0}")]
    NoPort(&'static str),
    #[error("another machine also holds a component of this name")]
    HeldTwice,
    #[error("its document places it on {0}, which does not respond")]
    PlacedOnSilent(HypervisorName),
    #[error("the config of its machine cannot be read")]
    UnreadableConfig,
    #[error("no machine that responds holds a member of its store")]
    NoMember,
    #[error("{0} was created in another store")]
    OtherStore(ComponentName),
    #[error("the members on machines were created with different initial members")]
    DifferentMembers,
    #[error(
        "members of its store were replaced since, and no majority of them confirms which: start the machines of its members, and run keelway \
         recover again"
    )]
    ReplacedMembers,
    #[error("its store reports another id than status.etcd of its cluster records: restore a newer backup")]
    OtherStoreId,
    #[error("--{flag} is {found}, but {field} is {recorded}: restore {field}, and run keelway recover again")]
    OtherBirth { flag: &'static str, found: String, field: &'static str, recorded: String },
}
