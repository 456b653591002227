"""Containers for the roles: the Docker engine and the base image.

The image contains only an operating system. The checkout, its virtual environment and Temporal's binary are mounted
read-only at their host paths, so that a role has the same command line in a container as outside.
"""
