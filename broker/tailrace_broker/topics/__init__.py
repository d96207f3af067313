"""Topics and the partition logs that this broker hosts of them."""
