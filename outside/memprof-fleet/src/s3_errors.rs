//! Errors of S3 as operators read them: their texts without XML, and remedies.

/// Remedy where a server's responses are not those of S3.
pub(crate) const NOT_S3: &str = "the server does not answer as S3 does: AWS_ENDPOINT_URL must be the address and port of its S3 API";

/// Parts of error texts, and the remedy for errors with one of them. A part is a code of S3's errors ("Error responses"
/// of its API reference), or a status, because the response to HEAD has no body with a code. The first matching entry
/// counts.
const S3_REMEDIES: &[(&[&str], &str)] = &[
    (
        &["RequestTimeTooSkewed"],
        "set this machine's clock: the server refuses requests whose time is 15 minutes wrong",
    ),
    (
        &["ExpiredToken", "TokenRefreshRequired", "InvalidToken"],
        "AWS_SESSION_TOKEN has expired or belongs to another key: get new credentials",
    ),
    (
        &["NoSuchBucket"],
        "create the bucket, or correct its name in the store's URL",
    ),
    (
        &[
            "PermanentRedirect",
            "AuthorizationHeaderMalformed",
            "status code: 301",
        ],
        "AWS_REGION must be the bucket's, and AWS_ENDPOINT_URL the region's",
    ),
    (
        &["status code: 401", "status code: 403"],
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be those of a user who may list, read, write and delete \
         there",
    ),
    (
        &["SlowDown", "status code: 429", "status code: 503"],
        "the server is overloaded, or takes too many requests from here: try again later",
    ),
    (
        &[
            "Header missing",
            "ListResponse",
            "too many redirects",
            "<html",
            "<HTML",
        ],
        NOT_S3,
    ),
    (
        // Any other error.
        &[""],
        "AWS_ENDPOINT_URL and AWS_REGION say where the store is",
    ),
];

/// Returns the remedy for an S3 error, whose text is `cause`. An unknown error gets a general one.
pub(crate) fn s3_remedy(cause: &str) -> &'static str {
    let is_named = |(parts, _): &&(&[&str], &str)| parts.iter().any(|part| cause.contains(part));
    S3_REMEDIES
        .iter()
        .find(is_named)
        .map_or("", |(_, remedy)| *remedy)
}

/// Returns the text of an S3 error without its XML, as `SignatureDoesNotMatch: The request signature …`. Cuts off an
/// HTML page at the end. Other texts stay unchanged.
pub(crate) fn plain_s3_error(cause: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = cause.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0)
    };
    match element("Code").zip(element("Message")) {
        Some((code, message)) => format!("{code}: {message}"),
        // The page of a web server, as in `…: <html>…`, is cut off.
        None => cause.split(": <").next().unwrap_or(cause).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s3_remedy_is_that_of_the_code_before_that_of_the_status() {
        let check = |cause: &str, expected: &str| {
            let remedy = s3_remedy(cause);
            assert!(remedy.contains(expected), "{cause}: {remedy}");
        };
        let error = |status: u16, code: &str| {
            format!("non-2xx status code: {status}: <Error><Code>{code}</Code></Error>")
        };
        check(&error(403, "RequestTimeTooSkewed"), "clock");
        check(&error(400, "ExpiredToken"), "AWS_SESSION_TOKEN");
        check(&error(403, "InvalidToken"), "AWS_SESSION_TOKEN");
        check(&error(404, "NoSuchBucket"), "create the bucket");
        check(&error(400, "AuthorizationHeaderMalformed"), "AWS_REGION");
        check(
            &error(403, "SignatureDoesNotMatch"),
            "AWS_SECRET_ACCESS_KEY",
        );
        check(&error(403, "AccessDenied"), "list, read, write and delete");
        check(&error(503, "SlowDown"), "try again later");
        check("ETag Header missing from response", "does not answer as S3");
        check(
            "status code: 404 Not Found: <!DOCTYPE html><html>",
            "does not answer as S3",
        );
        check("connection refused", "say where the store is");
    }

    #[test]
    fn s3_error_is_shown_without_xml() {
        let xml = "status code: 403 Forbidden: <?xml?>\n<Error><Code>AccessDenied</Code>\
                   <Message>No.</Message></Error>";
        assert_eq!(plain_s3_error(xml), "AccessDenied: No.");
        assert_eq!(plain_s3_error("Connection refused"), "Connection refused");
        assert_eq!(
            plain_s3_error("404 Not Found: <!DOCTYPE html>…"),
            "404 Not Found"
        );
    }
}
