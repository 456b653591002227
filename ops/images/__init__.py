"""Containers for the roles: the engine they run in, and the base image they run on.

An image holds an operating system only. The checkout, its virtual environment and Temporal's binary are mounted
read-only at the paths they have on the host, so that a role in a container starts with the very command line that
starts it outside of one.
"""
