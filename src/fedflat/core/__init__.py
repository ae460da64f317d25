"""The contract between methods and engines: method, task, local training, states, vectors, random numbers."""
