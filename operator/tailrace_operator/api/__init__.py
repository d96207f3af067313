"""The resources' types and rules; imports nothing else of the operator."""
