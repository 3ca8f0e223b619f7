"""What is counted of requests and bytes, and how the log tells it."""
