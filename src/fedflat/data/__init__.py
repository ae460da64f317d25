"""Data sets, their partition over clients, and the batches made of them."""
