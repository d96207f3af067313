"""One broker's part in its ring: requests to the metadata, gossip, bootstrap. Pure."""
