//! Compiles `keelway.agent.v1`.

fn main() -> std::io::Result<()> {
    // What may hold a key has no `Debug`.
    let private = ["File", "Pod", "MachineConfig", "ApplyRequest", "GetConfigResponse"]
        .map(|name| format!(".keelway.agent.v1.{name}"));
    tonic_prost_build::configure()
        .skip_debug(private)
        .compile_protos(&["proto/keelway/agent/v1/agent.proto"], &["proto"])
}
