"""How releases become the server's step, and gradients local steps: one file each."""
