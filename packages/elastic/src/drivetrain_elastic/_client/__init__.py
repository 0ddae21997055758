"""What calls the master of a job: its client, stores of keys, addresses and credentials."""
