"""Adapters to frameworks. Importing one needs the framework only where it says so."""
