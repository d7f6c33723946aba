/* librdkafka 2.12 built by cmake (which arroyo asks for) includes this header where it was told to do without curl: its guard
   asks whether WITH_OAUTHBEARER_OIDC is defined, and it is, as 0. Nothing of it is used. */
