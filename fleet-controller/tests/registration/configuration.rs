//! The configuration of the controller.

use keelway_component::configuration::ValidateConfiguration;
use keelway_fleet_controller::FleetControllerConfiguration;

#[test]
fn only_a_kubeconfig_is_required() {
    let read: FleetControllerConfiguration = serde_json::from_str(r#"{"kubeconfig": "a"}"#).unwrap();
    assert_eq!(read.lease.name, "keelway-fleet-controller");
    assert_eq!(read.check(), Ok(()));
}

#[test]
fn an_endpoint_is_a_host_and_a_port() {
    let with = |endpoint: &str| -> FleetControllerConfiguration {
        let endpoints = ["[2001:db8::1]:443", endpoint];
        serde_json::from_value(serde_json::json!({ "kubeconfig": "a", "endpoints": endpoints })).unwrap()
    };
    assert_eq!(with("api.example.com:443").check(), Ok(()));
    for wrong in ["api.example.com", ":443", "api.example.com:0", "api.example.com:x"] {
        assert_eq!(with(wrong).check().unwrap_err().field, "endpoints[1]", "{wrong}");
    }
}
