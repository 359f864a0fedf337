//! Compiles the part of `etcdserverpb` that Keelway uses.

fn main() -> std::io::Result<()> {
    tonic_prost_build::configure()
        .build_server(false)
        .compile_protos(&["proto/etcdserverpb/maintenance.proto"], &["proto"])
}
