"""Deliberately broken backends that measure the guard, and healthy variants that must raise no alarm."""
