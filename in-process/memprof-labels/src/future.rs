//! Labels of asynchronous work, which may run on a different thread at each poll.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::labels::Labels;

/// Adds labels to futures.
pub trait Label: Future + Sized {
    /// Labels all memory that the future allocates while it is polled. The thread's other labels stay in force.
    fn labelled(self, labels: Labels) -> Labelled<Self> {
        Labelled {
            labels,
            future: self,
        }
    }
}

impl<F: Future> Label for F {}

pin_project! {
    /// A future with labels, created by [`Label::labelled`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Labelled<F> {
        labels: Labels,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Labelled<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = this.labels.enter();
        this.future.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn future_has_labels_while_polled() {
        let labels = Labels::new().with("route", "/search");
        let mut polls = 0;
        let work = poll_fn(|_| {
            polls += 1;
            match polls {
                1 => Poll::Pending,
                _ => Poll::Ready(Labels::current()),
            }
        });
        let mut work = pin!(work.labelled(labels.clone()));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(work.as_mut().poll(&mut context), Poll::Pending);
        assert_eq!(Labels::current(), Labels::new());
        assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(labels));
        assert_eq!(Labels::current(), Labels::new());
    }
}
