"""The client: requirement, decision, local rules, durable state, and the ClientApp."""
