"""Generated from proto/ by client/generate.py; do not edit."""
