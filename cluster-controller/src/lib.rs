//! What runs for the workers of a cluster: its controller, its gateway, and the egress of its API servers.
