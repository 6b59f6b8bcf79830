"""Put parts together and run them."""
