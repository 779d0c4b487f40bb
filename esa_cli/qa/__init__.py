"""Questions about documents: preset to method, prompt, prefill, answer, evidence; `api.Esa`."""
