"""Pods: what a job and its engine settings make of them."""
