"""What failures mean, when a request is tried again, raced by a second one, or held back."""
