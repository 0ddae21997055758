"""What the master decides: pure functions of the time, its state and its configuration.

Nothing here reads a clock, a socket or a file. A decision returns events, each with its
reason; the journal keeps them, and applying them changes the state. A master that starts
again applies the journal and knows what the one before it knew.
"""
