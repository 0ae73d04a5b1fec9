//! Names of resources, by which proxies ask for them.

/// Whether this is the name of a service.
pub fn is_service(name: &str) -> bool {
    name.starts_with("service/")
}
