"""The contract between methods and engines: Method, Task, local training, states, vectors and random numbers."""
