//! The rights of the fleet controller.

/// All rights of the fleet controller in its fleet, and the roles that it binds to agents, as YAML documents.
pub const FLEET_CONTROLLER_ROLE: &str = include_str!("fleet-controller-role.yaml");

/// Returns [`FLEET_CONTROLLER_ROLE`] as objects.
#[must_use]
pub fn fleet_controller_role() -> Vec<serde_json::Value> {
    // A test applies the text, so this cannot fail.
    serde_saphyr::from_multiple(FLEET_CONTROLLER_ROLE).unwrap_or_default()
}
