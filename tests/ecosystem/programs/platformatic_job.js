// @platformatic/kafka: numbers the records of each key, from one topic into another, and ends with the last.
const { Consumer, Producer, stringDeserializers, stringSerializers } = require('@platformatic/kafka')

const [bootstrap, source, target, count] = process.argv.slice(2)
const bootstrapBrokers = bootstrap.split(',')

async function main() {
  const producer = new Producer({
    clientId: 'ring-producer',
    bootstrapBrokers,
    serializers: stringSerializers,
    idempotent: true,
    retries: 20,
  })
  const consumer = new Consumer({
    clientId: 'ring-consumer',
    groupId: 'platformatic',
    bootstrapBrokers,
    deserializers: stringDeserializers,
    retries: 20,
  })
  const stream = await consumer.consume({
    topics: [source],
    mode: 'earliest',
    autocommit: false,
    sessionTimeout: 10000,
    heartbeatInterval: 500,
  })
  const counts = new Map()
  const last = new Map()
  let waiting = []
  let done = 0
  for await (const message of stream) {
    const number = (counts.get(message.key) ?? 0) + 1
    counts.set(message.key, number)
    waiting.push({ topic: target, key: message.key, partition: message.partition, value: `${message.value} ${number}` })
    last.set(message.partition, message)
    done += 1
    if (waiting.length === 500 || done === Number(count)) {
      await producer.send({ messages: waiting, acks: -1 })
      for (const each of last.values()) await each.commit()
      waiting = []
    }
    if (done === Number(count)) break
  }
  await consumer.close(true)
  await producer.close()
  console.log(`done ${done}`)
}

main().catch((error) => {
  console.error(error, error.errors)
  process.exit(1)
})
