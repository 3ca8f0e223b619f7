"""Long runs in bad weather, before real servers. Short ones of them are tests; `make soak` runs long ones."""
