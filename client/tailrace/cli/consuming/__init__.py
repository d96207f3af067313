"""What `tailrace consume` is made of: pages, deliveries, formats, topic names."""
