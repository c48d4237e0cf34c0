"""What one client does: requirement, decision, local rules, durable state, and the ClientApp."""
