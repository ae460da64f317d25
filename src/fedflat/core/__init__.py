"""The contract between methods and engines: Method, Task, local training, states, vectors and random numbers."""

import warnings

# An operation without a rule for many clients is computed client by client; torch would ask for the rule.
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")
