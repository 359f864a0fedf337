//! Authorities, certificates, keys, kubeconfigs.
