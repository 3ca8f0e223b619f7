"""What flows through a pipeline: chunks of elements, and the forms that elements have in them."""
