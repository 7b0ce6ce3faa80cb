"""The backend protocol, the registry, and one module a backend."""
