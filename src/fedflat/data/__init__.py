"""Datasets, how they are split over clients, and how batches are made of them."""
