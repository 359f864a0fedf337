//! Keelway's documents: resource types, names, releases, roles, machine configs.
