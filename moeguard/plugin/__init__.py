"""What ``pytest --moeguard`` does beyond its hooks: cells, their campaigns, items, and the parameters of own tests."""
