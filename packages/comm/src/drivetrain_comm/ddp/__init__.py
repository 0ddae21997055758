"""DDP's communication hook: merged buckets, their compression, and the tuner of both."""
