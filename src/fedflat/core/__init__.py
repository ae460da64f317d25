"""The contract between methods and engines: Method, Task, local training, states, vectors and random numbers."""

import warnings

# torch computes operations without a rule for many clients client by client, and asks to be told that a rule is missing.
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")
