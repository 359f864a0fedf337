//! Compiles `keelway.manager.v1`.

fn main() -> std::io::Result<()> {
    // Documents may contain keys, so messages with documents have no `Debug`.
    let private = ["Document", "ApplyRequest", "WatchEvent"].map(|name| format!(".keelway.manager.v1.{name}"));
    tonic_prost_build::configure()
        .skip_debug(private)
        .compile_protos(&["proto/keelway/manager/v1/documents.proto"], &["proto"])
}
