//! What a model is shown next, by format and by what happened.
