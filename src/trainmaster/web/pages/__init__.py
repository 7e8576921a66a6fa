"""The pages of a job: rendered here, kept current by the parts that change, readable without scripts."""
