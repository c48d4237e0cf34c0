"""Policies that belong to no algorithm, and behaviours that change any policy's decisions."""
