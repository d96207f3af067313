"""Batches and deliveries as Arrow record batches, and back; needs the extra `arrow`."""
