//! The decision: documents and observation in, plan out.
