"""How a store answers: its server without a client, step by step with one, and how fast."""
