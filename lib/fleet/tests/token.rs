//! Fleet tokens.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_fleet::{FleetToken, FleetTokenError};
use serde_json::{Value as Json, json};

const SECRET: &str = "0123456789abcdef";

fn payload() -> Json {
    json!({
        "server": ["https://203.0.113.1:20000", "https://[2001:db8::1]:20000"],
        "authorities": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "cluster": "west",
        "bootstrap": format!("abcdef.{SECRET}"),
    })
}

fn parse(payload: &Json) -> Result<FleetToken, FleetTokenError> {
    FleetToken::parse(&STANDARD.encode(payload.to_string()))
}

#[test]
fn a_token_is_read_as_it_was_written() {
    let token = parse(&payload()).unwrap();
    assert_eq!(token.cluster, "west");
    assert_eq!(FleetToken::parse(&token.to_text()).unwrap(), token);
    assert!(!token.to_text().contains('\n'));
    let wrapped = token
        .to_text()
        .as_bytes()
        .chunks(60)
        .map(|line| str::from_utf8(line).unwrap())
        .collect::<Vec<_>>()
        .join("\r\n");
    assert_eq!(FleetToken::parse(&format!("  {wrapped}\n")).unwrap(), token);
}

#[test]
fn fields_of_later_releases_are_ignored() {
    let mut newer = payload();
    newer["transport"] = json!("grpc");
    assert_eq!(parse(&newer).unwrap(), parse(&payload()).unwrap());
}

#[test]
fn no_key_is_in_debug_output_or_errors() {
    let token = parse(&payload()).unwrap();
    assert!(!format!("{token:?}").contains(SECRET));
    assert!(!format!("{:?}", FleetToken::parse(SECRET)).contains(SECRET));
    let mut broken = payload();
    broken["bootstrap"] = json!(format!("abcdef-{SECRET}"));
    assert!(!format!("{0} {0:?}", parse(&broken).unwrap_err()).contains(SECRET));
}

#[test]
fn an_error_about_a_token_names_a_remedy() {
    let with = |field: &str, value: Json| {
        let mut changed = payload();
        changed[field] = value;
        parse(&changed).unwrap_err().to_string()
    };
    for (error, part) in [
        (FleetToken::parse("").unwrap_err().to_string(), "is empty"),
        (FleetToken::parse("kwj1.abc").unwrap_err().to_string(), "copy all"),
        (FleetToken::parse(&"A".repeat(70000)).unwrap_err().to_string(), "copy only"),
        (FleetToken::parse(&STANDARD.encode("{}")).unwrap_err().to_string(), "its end is missing"),
        (with("server", json!([])), "create one with the kubeconfig"),
        (with("server", json!(["http://203.0.113.1"])), "https://"),
        (with("authorities", json!("")), "create a new one"),
        (with("cluster", json!("West")), "\"West\" is not an RFC 1123 label"),
        (with("bootstrap", json!("x")), "ID.SECRET"),
    ] {
        assert!(error.contains(part), "{error}");
    }
}
