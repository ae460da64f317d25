"""What is trained, how it is described, and the function that trains it."""

