// confluent-kafka-javascript: copies a topic in transactions that hold the offsets as well; runs until it is killed.
const { Kafka } = require('@confluentinc/kafka-javascript').KafkaJS

const [bootstrap, source, target] = process.argv.slice(2)

async function main() {
  const producer = new Kafka().producer({
    'bootstrap.servers': bootstrap,
    'transactional.id': 'javascript-copy',
    'transaction.timeout.ms': 10000,
  })
  const consumer = new Kafka().consumer({
    'bootstrap.servers': bootstrap,
    'group.id': 'javascript-copy',
    'auto.offset.reset': 'earliest',
    'enable.auto.commit': false,
    'isolation.level': 'read_committed',
    'session.timeout.ms': 6000,
    'heartbeat.interval.ms': 1000,
  })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [source] })
  await consumer.run({
    eachBatch: async ({ batch }) => {
      const messages = batch.messages.map(({ key, value }) => ({ key, value, partition: batch.partition }))
      const next = BigInt(batch.messages[batch.messages.length - 1].offset) + 1n
      const partitions = [{ partition: batch.partition, offset: next.toString() }]
      const transaction = await producer.transaction()
      await transaction.send({ topic: target, messages })
      await transaction.sendOffsets({ consumer, topics: [{ topic: source, partitions }] })
      await transaction.commit()
    },
  })
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
