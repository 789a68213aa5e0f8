"""The CPU scheduler service: front ends that clients talk to, and one engine that decides."""
