//! Only the user of an egress on its own machine may connect to its sockets.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::Uid;
use rustix::thread::set_thread_res_uid;

use crate::daemon::{Egress, Keys, NOBODY};
use crate::lan::Lan;
use crate::on_host;

const API_SERVER: u8 = 10;
/// The user of another component on that machine.
const SOMEBODY: u32 = 4711;

#[test]
fn only_its_own_user_connects_to_an_egress() {
    on_host("users::only_its_own_user_connects_to_an_egress", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &keys.authority(), &[]);
        egress.start();
        for socket in [egress.cluster(), egress.control_plane(), egress.daemon.file("metrics.sock")] {
            assert_eq!(connect_as(NOBODY, &socket), Ok(()), "{}", socket.display());
            assert_eq!(connect_as(SOMEBODY, &socket), Err(ErrorKind::PermissionDenied), "{}", socket.display());
            // Only the permissions of the socket keep other users away.
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
            assert_eq!(connect_as(SOMEBODY, &socket), Ok(()), "{}", socket.display());
        }
    });
}

/// Connects in a thread of that user, without capabilities.
fn connect_as(user: u32, socket: &Path) -> Result<(), ErrorKind> {
    let socket = socket.to_owned();
    let connected = std::thread::spawn(move || {
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).unwrap();
        UnixStream::connect(socket)
    });
    connected.join().unwrap().map(drop).map_err(|error| error.kind())
}
